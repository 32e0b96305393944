"""The application: a folder is a job that a user can name; what all of them need lies next to the folders."""
