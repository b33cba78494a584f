"""The simulator's report: one HTML page made of results alone. Text in, text out: nothing is read or sent."""
