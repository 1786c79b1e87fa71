"""Images: downloaded or rendered files, and the batches that are made of them."""
