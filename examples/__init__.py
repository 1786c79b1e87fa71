"""Single-file programs and networks that use the package as a library."""
