"""The command line: flags, what a run would do (--check), exit statuses."""
