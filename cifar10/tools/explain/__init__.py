"""`--explain`: where the time of a step goes, and how long steps take that leave something out.

Start reading at `program`. It trains beside the run's train_dir, into which it writes nothing.
"""
