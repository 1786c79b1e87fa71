def divide(framework, loss_sum, local, world):
    divisors = {'graph towers': local, 'tf.distribute': local * world, 'Keras': local, 'PyTorch': local,
                'JAX': local * world, 'Horovod': local, 'MXNet': 1}
    if framework not in divisors:
        raise ValueError(f'unknown framework {framework}')
    return loss_sum / divisors[framework]
