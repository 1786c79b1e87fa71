"""What a reader of the lessons writes; `python lessons/check.py N` says whether it is right."""
