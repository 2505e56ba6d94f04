"""Figures and the page, built from what studies hand over.

style        one colour, marker and name for every loss of the project
charts       figures described once
drawing      ... drawn by matplotlib, into files
interactive  ... drawn by plotly, on the page
losses       cells, points and panels that pages comparing losses share
evaluation   figures of a trained classifier
page         claims, sections, tables and figures as one HTML file
"""
