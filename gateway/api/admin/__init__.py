"""The administrators' API under /admin/v1: for keys with the scope `admin`, or `admin:read` to look only."""
