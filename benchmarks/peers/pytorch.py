#!/usr/bin/env python3
"""Peer: PyTorch, eager or compiled, in fp32 or bf16, with batches augmented in a separate process.

Trains the classic network and prints a line with images/s at the end. It shares no code with this repository's program.
It needs a folder of CIFAR binary files and torch; without torch, the exit status is 3.

    python benchmarks/peers/pytorch.py --data_dir=/tmp/cifar10_data --steps=300 --compile --precision=bf16
"""
import argparse
import glob
import os
import sys
import time

try:
    import torch
    from torch import nn
except ImportError:
    print('pytorch.py: torch is not installed', file=sys.stderr)
    sys.exit(3)
import numpy as np


class Augmented(torch.utils.data.IterableDataset):
    """Endless batches of augmented images, for a DataLoader without batching."""

    def __init__(self, files, batch_size):
        super().__init__()
        data = np.concatenate([np.fromfile(path, np.uint8).reshape(-1, 1 + 3 * 32 * 32) for path in files])
        self.labels = torch.from_numpy(data[:, 0].astype(np.int64))
        # Channels last: a crop gathers whole pixels, and its result is channels last, too.
        self.images = torch.from_numpy(data[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).copy())
        self.batch_size = batch_size

    def __iter__(self):
        """Yields (images, labels), shuffled in every pass."""
        while True:
            for rows in torch.randperm(len(self.labels)).split(self.batch_size):
                if len(rows) == self.batch_size:
                    yield self.augment(rows), self.labels[rows]

    def augment(self, rows):
        """Returns the images in `rows`, cropped, flipped, with changed brightness and contrast, and standardised."""
        n = len(rows)
        across = torch.arange(24).expand(n, 24)
        across = torch.where(torch.rand(n, 1) < 0.5, across, across.flip(1)) + torch.randint(9, (n, 1))
        down = torch.arange(24) + torch.randint(9, (n, 1))
        x = self.images[rows[:, None, None], down[:, :, None], across[:, None, :]].permute(0, 3, 1, 2).float()
        x += torch.empty(n, 1, 1, 1).uniform_(-63, 63)
        mean = x.mean((2, 3), keepdim=True)
        x = (x - mean) * torch.empty(n, 1, 1, 1).uniform_(0.2, 1.8) + mean
        std, mean = torch.std_mean(x, (1, 2, 3), correction=0, keepdim=True)
        x = (x - mean) / std.clamp(min=x[0].numel() ** -0.5)
        return x.contiguous(memory_format=torch.channels_last)


def network():
    """Builds the classic network with its initial values."""
    def norm():
        return nn.LocalResponseNorm(9, alpha=0.001, beta=0.75, k=1.0)  # torch divides alpha by the size, 9

    def pool():
        return nn.MaxPool2d(3, 2, ceil_mode=True)  # like SAME for even sizes: pads only at the end
    model = nn.Sequential(
        nn.Conv2d(3, 64, 5, padding=2), nn.ReLU(), pool(), norm(),
        nn.Conv2d(64, 64, 5, padding=2), nn.ReLU(), norm(), pool(),
        nn.Flatten(), nn.Linear(2304, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, 10))
    layers = [layer for layer in model if hasattr(layer, 'weight')]
    for layer, stddev, bias in zip(layers, (0.05, 0.05, 0.04, 0.04, 1 / 192.0), (0.0, 0.1, 0.1, 0.1, 0.0)):
        nn.init.trunc_normal_(layer.weight, std=stddev, a=-2 * stddev, b=2 * stddev)
        nn.init.constant_(layer.bias, bias)
    return model


def train(flags):
    """Trains the network; returns (seconds of the steps after the warm-up, the last step's loss)."""
    files = sorted(glob.glob(os.path.join(flags.data_dir, '*', 'data_batch_*.bin')))
    data = Augmented(files, flags.batch_size)
    # One worker process is as fast as a thread, and does not compete for this process's interpreter lock.
    batches = iter(torch.utils.data.DataLoader(data, batch_size=None, num_workers=1, prefetch_factor=4,
                                               pin_memory=flags.device == 'gpu'))
    device = 'cuda' if flags.device == 'gpu' else 'cpu'
    model = network().to(device, memory_format=torch.channels_last)

    def cross_entropy(images, labels):
        with torch.autocast(device, torch.bfloat16, enabled=flags.precision == 'bf16'):
            logits = model(images)
        return nn.functional.cross_entropy(logits.float(), labels)
    if flags.compile:
        cross_entropy = torch.compile(cross_entropy)  # with its gradient; compiles in the first step
    decayed = [layer.weight for layer in model if isinstance(layer, nn.Linear) and layer.out_features > 10]
    others = [value for value in model.parameters() if all(value is not weight for weight in decayed)]
    # Weight decay is the gradient of the L2 loss; the L2 loss itself is only added to the last total.
    optimizer = torch.optim.SGD([{'params': decayed, 'weight_decay': 0.004}, {'params': others}], lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 136718, 0.1)
    averages = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9999))
    for step in range(2 * flags.steps):
        if step == flags.steps:
            begin = time.perf_counter()
        loss = cross_entropy(*(tensor.to(device, non_blocking=True) for tensor in next(batches)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        averages.update_parameters(model)
        value = loss.item()
    seconds = time.perf_counter() - begin
    # The other peers' loss includes the L2 loss.
    return seconds, value + sum(0.004 * weight.detach().square().sum().item() / 2 for weight in decayed)


def main():
    """Trains, and prints the speed of the steps after the warm-up."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--data_dir', required=True)
    parser.add_argument('--steps', type=int, default=300, help='timed steps, after as many warm-up steps')
    parser.add_argument('--batch_size', type=int, default=128)
    parser.add_argument('--precision', choices=('fp32', 'bf16'), default='fp32', help='bf16 uses autocast')
    parser.add_argument('--compile', action='store_true', help='use torch.compile, which needs a C++ compiler')
    parser.add_argument('--device', choices=('cpu', 'gpu'), default='cpu')
    flags = parser.parse_args()
    try:
        seconds, loss = train(flags)
    except torch._dynamo.exc.TorchDynamoException as error:  # it has no public name
        sys.exit(f'pytorch.py: torch.compile: {str(error).splitlines()[0]}')
    print(f'images_per_sec={flags.steps * flags.batch_size / seconds:.1f} loss={loss:.3f}')


if __name__ == '__main__':
    main()
