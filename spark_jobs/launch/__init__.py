"""The launcher of the ring: how ``run_ring`` gets n rank processes onto executors, joined, watched and ended.

May import: nothing of ours.
Not here: what a rank computes.

    driver                     task, one a slot                     rank, a process of its own
    barrier/launcher.py        barrier/task.py    pipes (rank/framing.py) ->  rank/main.py
    or horovod/launcher.py     meeting/hosts.py   who is where                rank/end.py  what became of it
    meeting/driver.py          meeting/rendezvous.py    where Horovod meets
      where tasks meet that    meeting/status_board.py  what tasks tell each other meanwhile
      are no barrier stage     meeting/watch.py         whose rank has ended, and who has to end with it
"""
