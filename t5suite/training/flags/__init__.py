"""The flags of both scripts, by subject, and their parser for command lines and files."""
