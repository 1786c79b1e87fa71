"""Runs a command with four stand-in GPUs: `python -m tests.standin_gpu python multi_gpu_train.py --num_gpus=4`.

STANDIN_GPUS and STANDIN_MB set their number and the memory of each in MiB.
"""
import os
import sys

from tests import standin_gpu

if len(sys.argv) < 2 or sys.argv[1] in ('', '-h', '--help'):
    sys.exit(__doc__)
try:
    os.execvpe(sys.argv[1], sys.argv[1:], {**standin_gpu.environment(), **os.environ})
except standin_gpu.Unavailable as error:
    sys.exit(f'error: {error}')
except OSError as error:
    sys.exit(f'error: {sys.argv[1]}: {error.strerror}')
