"""Picture files: read, prepared once, and used as training images above 64 pixels."""
