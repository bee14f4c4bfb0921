"""The check of a machine with a GPU: what ``scripts/gpu_check.sh`` runs there, and what ``make gpu-kit`` packs for it here.

    kit.py        here: fills the folder that travels; it holds this program, too
    __main__.py   there: runs the steps in order, keeps each one's outcome, writes the report
    install.py    steps: the packages that the machine lacks, and Horovod
    numerics.py   steps: gradients, losses and weights of every network, device beside CPU
    speed.py      steps: rows a second, loader, checkpoints, memory
    ranks.py      starts rank processes without Spark; rank.py is one
    cases.py      which networks, in which settings
    compare.py    distances and their limits
    outcome.py    what a step found; report.py makes a page of all

Until ``install.py`` is done the machine may lack anything but NumPy, so modules import the rest where they use it.
"""
