"""Picture files: read, decoded to square images, and used as training images above 64 pixels."""
