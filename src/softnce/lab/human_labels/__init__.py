"""Labels that people gave, with their disagreement.

votes     images and how often each class was chosen for them; votes drawn again, fewer
training  one head trained on such votes, judged by the votes of images it has not seen
"""
