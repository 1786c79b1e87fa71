"""Data-parallel training of a CIFAR-10 network in TensorFlow's graph mode.

Each line below is a layer; a file imports only from lower layers and from its own package:

    check local_cluster show_inputs      what a run would do; programs: a cluster on this machine, what is fed
    training                             the composer
    preparation                          what happens before a graph is built
    evaluation                           how much of a data set a network gets right
    inference                            classification with a trained model, and its export
    recipe                               what is trained and how, put together from the settings
    run                                  a run: its train_dir, checkpoints, summaries, hooks and loop
    cluster                              the processes of a cluster: who they are, whether they are there
    parallel data networks optim         towers and update modes; images; networks; optimizers and precisions
    cli                                  the command line, the terminal, signals
    config presets registry files errors  settings, recipes, names that flags choose from, files, exceptions
"""
