"""Admission policies: may the head of the queue run now?"""
