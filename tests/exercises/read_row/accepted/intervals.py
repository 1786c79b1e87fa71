class Interval:
    def __init__(self, low, high):
        self.low, self.high = low, high

    def times(self, number):
        return Interval(self.low * number, self.high * number)

    def over(self, other):
        return Interval(self.low / other.high, self.high / other.low)

    def pair(self):
        return self.low, self.high


def read_row(gpus, low, high, updates):
    step = Interval(low, high).times(gpus)
    images = Interval(128 * gpus, 128 * gpus).over(step)
    up = images.over(Interval(128, 128).over(Interval(0.35, 0.60)))
    return [each.pair() for each in (step, images, up, up.times(1 / gpus), step.times(updates / 3600))]
