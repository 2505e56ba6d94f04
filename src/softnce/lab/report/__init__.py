"""Figures and the page, made of what studies hand over.

style   one colour, marker and name for every loss of the project
charts  figures said once, drawn by matplotlib and by plotly
page    claims, sections, tables and figures as one HTML file
"""
