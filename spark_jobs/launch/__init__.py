"""The launcher of the ring: how ``run_ring`` gets n rank processes onto executors, joined, watched and ended.

May import: nothing of ours.
Not here: what a rank computes.

    driver                     task, one a slot                     rank, a process of its own
    barrier/launcher.py        barrier/task.py    pipes (rank/framing.py) ->  rank/main.py
    or horovod/launcher.py     barrier/watch.py   watches this task's rank
    under_way.py               the rings of this driver that run at once
    gpus/source.py             rank/gpu.py        the rank's GPU: which, and whether it works
    meeting/driver.py          meeting/hosts.py   which rank runs where
      tasks meet here if they  meeting/rendezvous.py    one server, in the task of rank 0: Horovod's key-value store,
      are no barrier stage                              and the status board
                               meeting/status_board.py  which ranks are done or failed, and what their tasks must do

How a killed rank becomes a new generation:

    rank/server.py             sees the process end (waitid); rank/fresh.py does, if the rank was not forked
    rank/process.py            hands its exit code to the task (on_exit)
    barrier/watch.py           makes a RankEnd of it, and reports that to the status board
    meeting/status_board.py    answers every task with the verdict ``end``
    barrier/watch.py           ends each task's own rank; barrier/task.py returns its RankEnd as a row
    barrier/launcher.py        collects the rows; rank/end.py picks the cause and raises it: RankDied
    spark_jobs/train.py        had called run_ring for this generation, and passes the error on
    recovery/supervisor.py     restarts, if recovery/budget.py has no objection; recovery/width.py counts the slots
    spark_jobs/train.py        takes the next generation's number, and calls run_ring again
    pipelines/training/train_rank.py    each rank loads the last checkpoint
"""
