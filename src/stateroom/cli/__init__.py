"""The command line. One file per command; `main` is their table."""
