"""Programs and networks of one file each, which use the package as a library."""
