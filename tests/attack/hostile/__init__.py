"""Hostile campaigns: families of requests that harm, against a service with two tenants.

families --> Shot --> wire --> Answer --> judge; beside them the load of the other tenant
"""
