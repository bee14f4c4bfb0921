"""The ring launcher: how ``spark_jobs/ring.py`` gets n rank processes onto Spark's executors, joined, watched and ended.

    driver                                task, one a slot                     rank, a process of its own
    barrier_launcher.py  barrier stage -> barrier_task.py  pipes (framing) ->  rank.py
    or horovod_launcher.py                  hosts.py       who is where          rank_end.py  what became of it
    driver_meeting.py  where tasks meet     rendezvous.py  where Horovod meets
      that are of no barrier stage          board.py       what tasks tell each other meanwhile
                                            watch.py       whose rank has ended, and who has to end with it
"""
