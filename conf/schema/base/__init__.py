"""What all sections of the config are made of: their base class, and the types of keys that several of them have.

May import: nothing of ours.
Not here: a section.
"""
