"""The solutions of the exercises, a file for each lesson. Write your own first.

    python lessons/check.py --solutions
"""
