"""Addresses of the forum."""

from django.contrib.auth import views
from django.urls import include, path
from machina import urls as machina_urls

urlpatterns = [
    path("accounts/login/", views.LoginView.as_view(template_name="forum_login.html"), name="login"),
    path("accounts/logout/", views.LogoutView.as_view(next_page="/"), name="logout"),
    path("", include(machina_urls)),
]
