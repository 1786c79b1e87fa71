class Divide:
    def __init__(self, **who):
        self.who = who

    def __call__(self, framework, loss_sum, local, world):
        for divisor, frameworks in self.who.items():
            if framework in frameworks:
                return loss_sum / {'one': 1, 'local': local, 'all': local * world}[divisor]
        raise ValueError(framework)


divide = Divide(one=['MXNet'], local=['graph towers', 'Keras', 'PyTorch', 'Horovod'], all=['tf.distribute', 'JAX'])
