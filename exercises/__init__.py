"""Problem sets: one source each, made into student copies (`release`) and graded (`grade`).

NN_name/source.md          text, solutions and checks: the instructor's notebook, with nbgrader metadata
NN_name/reference.py       what the hidden checks compare with, and what each class of mistakes gives
NN_name/wrong_answers.py   answers that the grader must refuse, by name
release/NN_name.ipynb      the public student copy, generated

sets        reads a set; what a course key makes of its numbers
release     instructor's notebook -> student's notebook
checks      the vocabulary of hidden checks
submission  a student's file -> the answers in it, and what is odd about it
runner      answers -> results, in a process of its own with limits
feedback    results -> pages and tables
manual      points given by a person, for what a person reads
grade       a folder of submissions -> all of that
bank        tries the wrong answers on the grader
"""
