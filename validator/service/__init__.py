"""The service behind `validator serve`: the validations of a reports folder as pages, live and past, with an API."""
