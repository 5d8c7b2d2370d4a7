// Which words of a kernel's parameters may be addresses, and what the parameters look like.
//
// The driver reports where a kernel's parameters are and how large they are; that is asked once for
// each function, and kept in a table that is read without locks. Any word of a parameter
// that is aligned to 8 bytes may be an address: structs nest, and their types are not known.
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
