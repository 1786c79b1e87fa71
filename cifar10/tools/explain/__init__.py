"""`--explain`: where the time of a step goes, what would change it, and what more devices would bring.

Start reading at `program`. It trains beside the run's train_dir, into which it writes nothing.
"""
