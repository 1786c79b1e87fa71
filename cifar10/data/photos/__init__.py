"""Picture files: reading, preparation, and training images above 64 pixels."""
