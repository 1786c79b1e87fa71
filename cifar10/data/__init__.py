"""Data sets, downloaded, rendered or converted, and the batches that are made from them."""
