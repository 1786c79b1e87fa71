#!/usr/bin/env python3
"""Draws the pictures of the lessons that no program measures: towers, the ring and the pipeline.

    python docs/learn/drawings.py

It needs matplotlib, and writes towers.svg, ring.svg and pipeline.svg beside itself.
"""
import os
import sys

import matplotlib
import numpy as np
from matplotlib import patches, pyplot

matplotlib.use('agg')
# With a salt, a picture has the same bytes each time.
matplotlib.rcParams.update({'font.size': 10, 'svg.hashsalt': 'lessons'})

COLOURS = ('#4e79a7', '#e8873a', '#59a14f', '#b07aa1')  # of towers, of chunks and of micro-batches
GREY = '#8a8a8a'


def canvas(width, height):
    """Returns axes without ticks, whose units are inches, in a figure of that size."""
    figure = pyplot.figure(figsize=(width, height), facecolor='white')
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis('off')
    return axes


def light(colour, share=0.25):
    """Returns a colour mixed with white; `share` is the share of the colour."""
    return tuple(share * np.array(matplotlib.colors.to_rgb(colour)) + 1 - share)


def box(axes, x, y, width, height, text='', colour='black', fill='white', **style):
    """Draws a box with a text in its middle; x and y are its lower left corner."""
    axes.add_patch(patches.FancyBboxPatch((x, y), width, height, boxstyle='round,pad=0,rounding_size=0.06',
                                          edgecolor=colour, facecolor=fill, linewidth=1.3))
    axes.text(x + width / 2, y + height / 2, text, ha='center', va='center', **style)


def arrow(axes, start, end, colour='black', bend=0.0):
    """Draws an arrow between two points."""
    axes.add_patch(patches.FancyArrowPatch(start, end, arrowstyle='-|>', mutation_scale=13, color=colour, linewidth=1.3,
                                           shrinkA=0, shrinkB=0, connectionstyle=f'arc3,rad={bend}'))


def towers():
    """Draws lesson 1: one set of variables, two towers with two examples each, the mean and the one update."""
    axes = canvas(7.6, 4.7)
    axes.text(0.85, 4.27, 'batch', ha='right', va='center')
    for i in range(4):
        box(axes, 1.05 + 1.42 * i, 4.08, 1.24, 0.38, f'example {i}', fill=light(COLOURS[i // 2]), fontsize=9)
    for k in range(2):
        left, middle = 0.65 + 3.25 * k, 2.18 + 3.25 * k
        box(axes, left, 2.5, 3.05, 1.05, colour=COLOURS[k], fill=light(COLOURS[k], 0.12))
        axes.text(left + 0.14, 3.3, f'tower {k}, on device {k}', color=COLOURS[k], weight='bold', va='center')
        axes.text(left + 0.14, 3.0, f'model and loss of examples {2 * k} and {2 * k + 1}', fontsize=9, va='center')
        axes.text(left + 0.14, 2.72, f'gradient $g_{k}$ of all variables', fontsize=9, va='center')
        for i in (0, 1):
            arrow(axes, (1.67 + 1.42 * (2 * k + i), 4.08), (1.67 + 1.42 * (2 * k + i), 3.55), COLOURS[k])
        arrow(axes, (middle + 0.3 * (1 - 2 * k), 2.5), (3.8 - 0.5 * (1 - 2 * k), 1.95), COLOURS[k])
        outside = 1.0 + 5.6 * k
        arrow(axes, (outside, 0.8), (outside, 2.5), GREY)
        axes.text(outside + 0.1 * (1 - 2 * k), 1.62, 'read', fontsize=9, color=GREY, va='center',
                  ha=('left', 'right')[k])
    box(axes, 2.55, 1.4, 2.5, 0.55, 'mean  $(g_0 + g_1)\\; /\\; 2$', fill='#eeeeee')
    arrow(axes, (3.8, 1.4), (3.8, 0.8))
    axes.text(3.92, 1.1, 'one update: variable − rate · mean', fontsize=9, va='center')
    box(axes, 0.65, 0.2, 6.3, 0.6, 'variables: one set, whatever the number of towers', fill='#eeeeee')


def ring():
    """Draws lesson 3: the ring with the chunks of its first step, and the way of each chunk through all steps."""
    axes = canvas(9.2, 3.9)
    axes.text(1.75, 3.7, 'Step 1, on four devices', ha='center', weight='bold', va='center')
    places = [(0.95, 2.65), (2.55, 2.65), (2.55, 1.15), (0.95, 1.15)]
    for d, (x, y) in enumerate(places):
        box(axes, x - 0.45, y - 0.35, 0.9, 0.7)
        axes.text(x, y + 0.15, f'device {d}', ha='center', va='center', fontsize=9)
        for chunk in range(4):
            axes.add_patch(patches.Rectangle((x - 0.36 + 0.18 * chunk, y - 0.25), 0.17, 0.2, facecolor=COLOURS[chunk],
                                             alpha=1.0 if chunk == d else 0.3))
    for d, (start, end, where, side) in enumerate((
            ((1.4, 2.65), (2.1, 2.65), (1.75, 2.85), 'center'), ((2.55, 2.3), (2.55, 1.5), (2.63, 1.9), 'left'),
            ((2.1, 1.15), (1.4, 1.15), (1.75, 0.95), 'center'), ((0.95, 1.5), (0.95, 2.3), (0.87, 1.9), 'right'))):
        arrow(axes, start, end, COLOURS[d])
        axes.text(*where, f'{(2 * d + 1) * 10 ** d}', color=COLOURS[d], ha=side, va='center', fontsize=9.5,
                  weight='bold')
    axes.text(1.75, 0.38, 'each device sends one chunk,\nall at the same time', ha='center', va='center', fontsize=9,
              color=GREY)

    left, width = 3.75, 0.76
    axes.text(left + 3.5 * width, 3.7, 'The way of each chunk', ha='center', weight='bold', va='center')
    for first, last, text in ((1, 3, 'reduce-scatter: add'), (4, 6, 'all-gather: keep')):
        axes.text(left + (first + last + 1) / 2 * width, 3.36, text, ha='center', va='center', fontsize=9)
        axes.plot([left + (first + 0.08) * width, left + (last + 0.92) * width], [3.22] * 2, color='black', linewidth=1)
    for step in range(7):
        axes.text(left + (step + 0.5) * width, 3.06, f'step {step}' if step else 'start', ha='center', va='center',
                  fontsize=9, color=GREY)
        for chunk in range(4):
            y = 2.35 - 0.68 * chunk
            # Parameter 2 chunk + 1, times 1 for device 0, 10 for device 1 and so on, over the devices it has been on.
            total = (2 * chunk + 1) * sum(10 ** ((chunk + each) % 4) for each in range(min(step, 3) + 1))
            is_whole = step >= 3
            axes.add_patch(patches.Rectangle(
                (left + step * width + 0.05, y), width - 0.1, 0.54, edgecolor=COLOURS[chunk], linewidth=1.2,
                facecolor=light(COLOURS[chunk], 0.45 if is_whole else 0.08 + 0.1 * step)))
            axes.text(left + (step + 0.5) * width, y + 0.38, f'device {(chunk + step) % 4}', ha='center', va='center',
                      fontsize=7.5, color='#444444')
            axes.text(left + (step + 0.5) * width, y + 0.16, f'[ {total} ]' if step else f'{total}', ha='center',
                      va='center', fontsize=9.5, weight='bold' if is_whole else 'normal')
    axes.text(left + 3.5 * width, 0.12, 'the first number of each chunk; in brackets: just received', ha='center',
              va='center', fontsize=9, color=GREY)


def pipeline():
    """Draws lesson 7: four parts of a model at work over time, for a whole batch and for four micro-batches."""
    axes = canvas(8.4, 4.3)
    left, unit = 1.05, 0.15  # inches; a unit is the time of a part for a quarter of the batch, forward
    for top, title, micro_batches in ((3.75, 'A whole batch: bubble 3/4', 1),
                                      (1.75, 'Four micro-batches: bubble 3/7', 4)):
        axes.text(left, top + 0.25, title, weight='bold', va='center')
        for part in range(4):
            y = top - 0.36 * (part + 1)
            axes.text(left - 0.1, y + 0.15, f'device {part}', ha='right', va='center', fontsize=9)
            slots = micro_batches + 3  # in each direction
            length = 4 // micro_batches  # of a slot, forward; backward takes twice as long
            axes.add_patch(patches.Rectangle((left, y), 3 * slots * length * unit, 0.3, facecolor='#e4e4e4'))
            for m in range(micro_batches):
                forward = (part + m) * length
                backward = (slots + 2 * (3 - part + m)) * length
                for start, extent, name, share in ((forward, length, 'F', 0.45), (backward, 2 * length, 'B', 0.8)):
                    axes.add_patch(patches.Rectangle((left + start * unit, y), extent * unit, 0.3, edgecolor='white',
                                                     facecolor=light(COLOURS[m], share)))
                    axes.text(left + (start + extent / 2) * unit, y + 0.15, f'{name}{m}' if micro_batches > 1 else name,
                              ha='center', va='center', fontsize=7 if name == 'F' and micro_batches > 1 else 9)
    axes.text(left + 3.3, 3.54, 'waits', ha='center', va='center', fontsize=9, color=GREY)
    arrow(axes, (left, 0.13), (left + 7.2, 0.13), GREY)
    axes.text(left + 7.1, 0.22, 'time', ha='right', va='bottom', color=GREY, fontsize=9)


DRAWINGS = {'towers': towers, 'ring': ring, 'pipeline': pipeline}


def main(folder):
    """Draws all pictures into a folder."""
    for name, draw in DRAWINGS.items():
        draw()
        pyplot.savefig(os.path.join(folder, f'{name}.svg'), metadata={'Date': None})
        pyplot.close()


if __name__ == '__main__':
    main(sys.argv[1] if sys.argv[1:] else os.path.dirname(os.path.abspath(__file__)))
