module github.com/onelane/onelane/testutil/routers

go 1.26.0

require (
	github.com/go-chi/chi/v5 v5.5.0
	github.com/labstack/echo/v4 v4.16.0
	github.com/onelane/onelane v0.0.0
)

replace github.com/onelane/onelane => ../..
