"""resize"""
