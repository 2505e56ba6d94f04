"""Figures and the page, made of what studies hand over.

style   one colour, marker and name for every loss of the project
charts  figures said once, drawn by matplotlib and by plotly
losses  cells, points and panels that pages comparing losses share
page    claims, sections, tables and figures as one HTML file
"""
