"""Settings of the Django project. Nothing here is secret: the sites hold invented data and serve one machine."""

from pathlib import Path

from machina import MACHINA_MAIN_STATIC_DIR, MACHINA_MAIN_TEMPLATE_DIR
from oscar import INSTALLED_APPS as OSCAR_APPS
from oscar.defaults import *  # noqa: F403 (oscar's settings are read from here)

_HERE = "agentgym_envs.webarena.sites.django_project"

SECRET_KEY = "the embedded sites"
DEBUG = False
ALLOWED_HOSTS = [".localhost"]
SITE_ID = 1
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en-us"
ROOT_URLCONF = f"{_HERE}.shopping_urls"  # `middleware.choose_site` chooses per host
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"

INSTALLED_APPS = [
    *OSCAR_APPS,
    "mptt",
    "machina",
    "machina.apps.forum",
    "machina.apps.forum_conversation",
    "machina.apps.forum_conversation.forum_attachments",
    "machina.apps.forum_conversation.forum_polls",
    "machina.apps.forum_feeds",
    "machina.apps.forum_moderation",
    "machina.apps.forum_search",
    "machina.apps.forum_tracking",
    "machina.apps.forum_member",
    "machina.apps.forum_permission",
]

MIDDLEWARE = [
    f"{_HERE}.middleware.choose_site",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    f"{_HERE}.middleware.ShopOnly",
    f"{_HERE}.middleware.ForumOnly",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [str(Path(__file__).with_name("templates")), MACHINA_MAIN_TEMPLATE_DIR],
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "oscar.apps.search.context_processors.search_form",
                "oscar.apps.checkout.context_processors.checkout",
                "oscar.apps.communication.notifications.context_processors.notifications",
                "oscar.core.context_processors.metadata",
                "machina.core.context_processors.metadata",
            ],
            "loaders": [
                (
                    "django.template.loaders.cached.Loader",
                    [
                        "django.template.loaders.filesystem.Loader",
                        "django.template.loaders.app_directories.Loader",
                    ],
                )
            ],
        },
    }
]

# One database per tenant and site; a connection is taken at the first query of a request and given back at its end.
DATABASES = {"default": {"ENGINE": f"{_HERE}.database", "NAME": "tenant", "CONN_MAX_AGE": 0, "ATOMIC_REQUESTS": True}}

# Nothing is kept outside databases and uploads, so that there is nothing else to reset.
CACHES = {
    name: {"BACKEND": "django.core.cache.backends.dummy.DummyCache"} for name in ("default", "machina_attachments")
}
SESSION_ENGINE = "django.contrib.sessions.backends.db"
MESSAGE_STORAGE = "django.contrib.messages.storage.session.SessionStorage"
EMAIL_BACKEND = "django.core.mail.backends.dummy.EmailBackend"

AUTHENTICATION_BACKENDS = [
    "oscar.apps.customer.auth_backends.EmailBackend",
    "django.contrib.auth.backends.ModelBackend",
]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # the slow ones would only cost time here
AUTH_PASSWORD_VALIDATORS: list[dict[str, object]] = []
LOGIN_REDIRECT_URL = "/"
LOGIN_URL = "/accounts/login/"

STATIC_URL = "/static/"
STATICFILES_DIRS = [MACHINA_MAIN_STATIC_DIR]
MEDIA_URL = "/media/"
STORAGES = {
    "default": {"BACKEND": f"{_HERE}.media.TenantStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
DATA_UPLOAD_MAX_MEMORY_SIZE = FILE_UPLOAD_MAX_MEMORY_SIZE = 8 * 2**20

HAYSTACK_CONNECTIONS = {"default": {"ENGINE": f"{_HERE}.search.Engine"}}

OSCAR_SHOP_NAME = "Larkfield Home Store"
OSCAR_SHOP_TAGLINE = "things for house, garden and weekend"
OSCAR_DEFAULT_CURRENCY = "USD"
OSCAR_ALLOW_ANON_REVIEWS = False
OSCAR_THUMBNAILER = f"{_HERE}.media.WholeImage"
OSCAR_FROM_EMAIL = "store@larkfield.example"
OSCAR_INITIAL_ORDER_STATUS = "Pending"
OSCAR_INITIAL_LINE_STATUS = "Pending"
OSCAR_ORDER_STATUS_PIPELINE = {
    "Pending": ("Processing", "Cancelled"),
    "Processing": ("Shipped", "Cancelled"),
    "Shipped": ("Complete", "Returned"),
    "Complete": ("Returned",),
    "Returned": (),
    "Cancelled": (),
}
OSCAR_LINE_STATUS_PIPELINE = OSCAR_ORDER_STATUS_PIPELINE
OSCAR_ORDER_STATUS_CASCADE = {"Cancelled": "Cancelled", "Shipped": "Shipped", "Complete": "Complete"}

MACHINA_FORUM_NAME = "Commonroom"
MACHINA_BASE_TEMPLATE_NAME = "forum_base.html"
MACHINA_DEFAULT_AUTHENTICATED_USER_FORUM_PERMISSIONS = [
    "can_see_forum",
    "can_read_forum",
    "can_start_new_topics",
    "can_reply_to_topics",
    "can_edit_own_posts",
    "can_delete_own_posts",
    "can_post_without_approval",
    "can_create_polls",
    "can_vote_in_polls",
    "can_download_file",
]

LOGGING = {"version": 1, "disable_existing_loggers": False, "root": {"handlers": [], "level": "CRITICAL"}}
SILENCED_SYSTEM_CHECKS = ["models.W042"]
