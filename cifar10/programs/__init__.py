"""The programs, their flags and their exit statuses."""
