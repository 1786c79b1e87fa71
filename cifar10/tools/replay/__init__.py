"""Replay: repeats the steps of a run, in memory, to show what happened in one of them.

Start reading at `program`. `rerun` takes the steps, `verify` compares them with what the run recorded, `probe` computes
what a step does not report, `report` has the lines. `against` compares the records of two runs, and takes no steps.
"""
