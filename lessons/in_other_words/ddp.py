#!/usr/bin/env python3
"""Lesson 12 in PyTorch: the step of four processes with DistributedDataParallel (DDP), over gloo on the CPU.

    python lessons/in_other_words/ddp.py
    python lessons/in_other_words/ddp.py --lose

It needs torch only (`python -m pip install torch`), and prints the lines of lessons/other_words.py. With `--lose`, the
last process ends silently after the first update, and each other process prints its error.
"""
import argparse
import os
import sys
import tempfile

try:
    import torch
    from torch import distributed, multiprocessing
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DistributedSampler
except ModuleNotFoundError as error:
    print(f'ddp.py: error: {sys.executable} has no {error.name}: python -m pip install torch', file=sys.stderr)
    sys.exit(2)

EXAMPLES = torch.arange(1.0, 9.0)
PROCESSES = 4
RATE = 0.1
UPDATES = 3


class Fit(torch.nn.Module):
    """The model: w * z."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(()))

    def forward(self, z):
        return self.w * z


def train(share, updates=1, z=None, reduction='mean', after_update=lambda: None):
    """Trains on this process' share; returns the mean loss of the processes before each update, and w after it."""
    loss_of = torch.nn.MSELoss(reduction=reduction)
    model = DistributedDataParallel(Fit())
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    steps = []
    for _ in range(updates):
        optimizer.zero_grad()
        loss = loss_of(model(torch.ones_like(share) if z is None else z), share)
        loss.backward()  # DDP all-reduces the gradients here, to their mean over the processes
        optimizer.step()
        mean_loss = loss.detach()  # only this process' loss; DDP does not touch it
        distributed.all_reduce(mean_loss)
        steps.append((mean_loss.item() / distributed.get_world_size(), model.module.w.item()))
        after_update()
    return steps


def table_line(name, values):
    """Returns a line of a table."""
    return f'  {name:20}' + ''.join(f'{value:10.3f}' for value in values)


def show_faults(rank, say):
    """Makes one mistake at a time, and prints w after one update: on one device, by hand with the mistake, measured."""
    share = EXAMPLES.chunk(PROCESSES)[rank]
    uneven = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0], [6.0]][rank])
    normalised = (share - share.mean()) / share.std(unbiased=False)
    say('\nOne mistake at a time; w after 1 update:\n                    one device   by hand  measured')
    for name, right, predicted, steps in (
            ('no sampler', 0.9, 2 * RATE * 1.5, train(EXAMPLES[:2])),
            ('sum of the share', 0.9, 2 * RATE * 36 / PROCESSES, train(share, reduction='sum')),
            ('uneven shares', 0.7, 2 * RATE * (1.5 + 3.5 + 5 + 6) / PROCESSES, train(uneven)),
            ('own statistics', 2 * RATE * EXAMPLES.std(unbiased=False).item(), 2 * RATE * 0.5,
             train(share, z=normalised))):
        say(table_line(name, [right, predicted, steps[0][1]]))


def show_sampler(say):
    """Prints which of ten examples each process gets from a DistributedSampler."""
    say('\nDistributedSampler, 10 examples, shuffle=False:')
    for drop_last in (False, True):
        indices = [list(DistributedSampler(range(10), PROCESSES, rank, shuffle=False, drop_last=drop_last))
                   for rank in range(PROCESSES)]
        say(f'  drop_last={drop_last!s:5}     ' + '  |  '.join(' '.join(map(str, each)) for each in indices))


def work(rank, count, rendezvous, lose):
    """What process `rank` of `count` does; process 0 prints."""
    def say(text):
        if rank == 0:
            print(text, flush=True)

    def end():
        if lose and rank == count - 1:
            os._exit(0)  # as if its machine had lost power

    distributed.init_process_group('gloo', init_method=f'file://{rendezvous}', rank=rank, world_size=count)
    try:
        steps = train(EXAMPLES.chunk(count)[rank], UPDATES, after_update=end)
    except RuntimeError as error:
        # gloo's message begins with the line of its source in brackets, and an address and advice follow.
        print(f'  process {rank}: RuntimeError: {str(error).partition("] ")[2].partition(" [")[0]}', flush=True)
        return
    say(table_line(f'PyTorch DDP, {count}', [steps[0][0], *(w for _, w in steps)]))
    if count > 1:
        show_faults(rank, say)
        show_sampler(say)
    distributed.destroy_process_group()


def main():
    """Reads the flag, and starts one process, then four."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--lose', action='store_true', help='end the last process after its first update')
    arguments = parser.parse_args()
    print('                    loss at 0    w after updates 1, 2, 3')
    for count in (1, PROCESSES):
        with tempfile.TemporaryDirectory() as folder:
            multiprocessing.spawn(work, (count, os.path.join(folder, 'rendezvous'), arguments.lose and count > 1),
                                  nprocs=count)


if __name__ == '__main__':
    main()
