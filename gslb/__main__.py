"""`python -m gslb`: the command line."""

from gslb.cli import main

if __name__ == "__main__":
    main()
