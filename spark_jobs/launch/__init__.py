"""The launcher of the ring: how ``run_ring`` gets n rank processes onto executors, joined, watched and ended.

May import: nothing of ours.
Not here: what a rank computes.

    driver                     task, one a slot                     rank, a process of its own
    barrier/launcher.py        barrier/task.py    pipes (rank/framing.py) ->  rank/main.py
    or horovod/launcher.py     meeting/hosts.py   which rank runs where       rank/end.py  how it ended
    meeting/driver.py          meeting/rendezvous.py    where Horovod's ranks find each other
      tasks meet here if they  meeting/status_board.py  which ranks are done or failed
      are no barrier stage     meeting/watch.py         ends this task's rank when another one failed
"""
