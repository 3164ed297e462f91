"""The flags of both scripts, by subject, and what reads them from a command line or a file."""
