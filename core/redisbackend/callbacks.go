package redisbackend

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
)

// recovered makes an error of a panic in a function of the application. It runs on a goroutine of the
// backend, where nobody else could recover.
func recovered(what string, call func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("redisbackend: %s of the Redis client panicked: %v", what, p)
		}
	}()
	return call()
}

// careful makes errors of panics in the credentials' functions.
func careful(o *redis.Options) {
	if from := o.CredentialsProvider; from != nil && o.CredentialsProviderContext == nil {
		o.CredentialsProviderContext = func(context.Context) (user, password string, err error) {
			err = recovered("CredentialsProvider", func() error { user, password = from(); return nil })
			return user, password, err
		}
	} else if from := o.CredentialsProviderContext; from != nil {
		o.CredentialsProviderContext = func(ctx context.Context) (user, password string, err error) {
			err = recovered("CredentialsProviderContext", func() (err error) { user, password, err = from(ctx); return err })
			return user, password, err
		}
	}
	if from := o.StreamingCredentialsProvider; from != nil {
		o.StreamingCredentialsProvider = current{from}
	}
}

// current passes on the current credentials of a provider, and no later ones. With later ones,
// go-redis would send AUTH on a connection that the backend uses, and read the answer to another
// command.
type current struct {
	auth.StreamingCredentialsProvider
}

func (p current) Subscribe(auth.CredentialsListener) (got auth.Credentials, end auth.UnsubscribeFunc, err error) {
	const what = "StreamingCredentialsProvider"
	err = recovered(what, func() error {
		given, unsubscribe, err := p.StreamingCredentialsProvider.Subscribe(new(deaf))
		if err != nil {
			return err
		}
		got = auth.NewBasicCredentials(given.BasicAuth())
		end = func() error { return recovered(what, unsubscribe) }
		return nil
	})
	return got, end, err
}

// deaf has a size, because a provider tells its listeners apart by their addresses.
type deaf struct{ _ byte }

func (*deaf) OnNext(auth.Credentials) {}
func (*deaf) OnError(error)           {}
