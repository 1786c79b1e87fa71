"""Answers to read_row."""


class Interval:
    def __init__(self, low, high):
        self.low, self.high = low, high

    def times(self, number):
        return Interval(self.low * number, self.high * number)

    def over(self, other):
        return Interval(self.low / other.high, self.high / other.low)

    def pair(self):
        return self.low, self.high


def accepted_intervals(gpus, low, high, updates):
    step = Interval(low, high).times(gpus)
    images = Interval(128 * gpus, 128 * gpus).over(step)
    up = images.over(Interval(128, 128).over(Interval(0.35, 0.60)))
    return [each.pair() for each in (step, images, up, up.times(1 / gpus), step.times(updates / 3600))]


def accepted_line_by_line(gpus, low, high, updates):
    step = gpus * low, gpus * high
    images = 128 * gpus / step[1], 128 * gpus / step[0]
    up = images[0] * 0.35 / 128, images[1] * 0.60 / 128
    efficiency = up[0] / gpus, up[1] / gpus
    hours = updates * step[0] / 3600, updates * step[1] / 3600
    return [step, images, up, efficiency, hours]


mistakes_in_line_by_line = {
    'batch_is_not_for_each_gpu': (
        'the images a second are 320 to 320; 1280 to 1280 is right',
        '128 * gpus / step[1], 128 * gpus', '128 / step[1], 128'),
    'efficiency_is_the_speed_up': (
        'the efficiency is 3.5 to 6; 0.875 to 1.5 is right',
        'up[0] / gpus, up[1] / gpus', 'up'),
    'hours_of_the_printed_seconds': (
        'the hours are 0.8333 to 0.8333; 3.333 to 3.333 is right',
        'step[0] / 3600, updates * step[1]', 'low / 3600, updates * high'),
    'low_over_low': (
        'the speed-up is 6 to 3.5; 3.5 to 6 is right',
        '0.35 / 128, images[1] * 0.60', '0.60 / 128, images[1] * 0.35'),
    'printed_seconds_as_the_step': (
        'the seconds of a step are 0.1 to 0.1; 0.4 to 0.4 is right',
        'gpus * low, gpus * high', 'low, high'),
}
