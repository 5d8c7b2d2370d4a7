// Which words of a kernel's parameters may be addresses, and what the parameters look like.
//
// The driver tells where a kernel's parameters lie and how large they are; that is asked once for
// each function, and kept in a table without locks for those who look. Any word of a parameter
// that is aligned to 8 bytes may be an address: structs nest, and nobody tells their types.
//
// Threads: any.
#pragma once

#include "interceptor/touch.h"

namespace ravenstore::interceptor::params {

// The launch of `function` (a CUkernel may stand for one) with these parameters touches what they
// name; anything, where the driver does not know its parameters.
void Name(CUfunction function, void** parameters, void** extra, Touched* touched);
// Functions of a module or library are gone, and their names may come again for others.
void Forget();
void ForgetInChild();

}  // namespace ravenstore::interceptor::params
