"""The command line: finds the commands, which are in the rooms."""
