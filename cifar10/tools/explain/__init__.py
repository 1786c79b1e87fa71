"""`--explain`: where the time of a step goes, and what would change it.

Start reading at `program`. It trains beside the run's train_dir, into which it writes nothing.
"""
