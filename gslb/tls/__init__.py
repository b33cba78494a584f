"""TLS on both sides: certificates read, contexts built from files. Knows no configuration and no sockets."""
