"""The Django project: django-oscar as shop front and dashboard, django-machina as forum."""
